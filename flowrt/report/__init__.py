"""``flowrt report RUN_DIR``: one HTML file of a run, which needs nothing beside it and can be mailed.

    event files, flight records, trace files
        | read_run.py      Run: curves, traced steps, records of tasks, and notes of what could not be read
        | step_times.py    what devices did with the time of a step; what went from one to another
        | sections.py      a heading, charts (charts.py, scale.py) and tables each
        | page.py          the page: template.html, page.css and page.js are put into it
    report.html

Everything between reading and writing is pure. Text from files comes into the page only through
`flowrt.report.markup.element`, which escapes it. What a run has not is named in the page, with how to have
it.
"""

from flowrt.report.page import write_page as write_page
from flowrt.report.page import write_report as write_report
from flowrt.report.read_run import read_run as read_run
