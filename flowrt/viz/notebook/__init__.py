"""Views in notebooks.

cards    the facts of an object, as HTML
inline   the HTML page in a frame
"""
