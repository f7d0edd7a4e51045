"""Views cut down to what a reader can take in.

siblings   the graphs among the children of boxes
series     like scopes as one box, very large boxes divided
opening    which groups are open
fold       closed groups and focus
"""
