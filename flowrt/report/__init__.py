"""``flowrt report RUN_DIR``: a run as one self-contained HTML file.

    event files, facts, flight records, plans, trace files
        | read_run.py      Run: curves, traced steps, records of tasks, and notes of unreadable files
        | step_times.py    activities of devices during a step; traffic between them
        | sections.py      one heading with charts (charts.py, scale.py) and tables (parts.py) each
        | comparison.py    what differs between folders: facts, speed, final and best values
        | setup_sections.py  script, host, versions; the table of the comparison
        | plan_sections.py the same for plans of ``flowrt plan --log-dir``
        | page.py          the page: inlines template.html, page.css and page.js
    report.html

Everything between reading and writing is pure. Text from files enters the page only through
`flowrt.base.markup.element`, which escapes it. The page names missing data, and how to record it.
"""

from flowrt.report.page import write_page as write_page
from flowrt.report.read_run import common_directory as common_directory
from flowrt.report.read_run import read_run as read_run
