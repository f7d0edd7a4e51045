"""The commands ``flowrt``, ``flowrt-run``, ``flowrt-worker`` and ``flowrt-tf1``. Their entry points are in
``flowrt_command.py`` beside the package.

main, options            the command line of ``flowrt``; shared options
completion               ``flowrt completion``
machine, devices, env    facts about this machine; ``flowrt devices``; ``flowrt env``
selftest                 ``flowrt selftest``
explain, export, report  ``flowrt explain``, ``flowrt export``, ``flowrt report``
summary, plan            ``flowrt summary``, ``flowrt plan``
export_schedule          ``flowrt export --schedule``
certs, token, debug      ``flowrt certs``, ``flowrt token``, ``flowrt debug``
watching, top, profile   ``flowrt top`` and ``flowrt profile``, and what they share
model_files              kinds of model files: a table of readers and writers
convert, run_model       ``flowrt convert``, ``flowrt run-model``
run, elastic, worker     ``flowrt-run``, also for a range of workers; ``flowrt-worker``
tf1                      ``flowrt-tf1``
"""
