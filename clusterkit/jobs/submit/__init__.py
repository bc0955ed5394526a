"""From what a user asks for to a job that is handed over, for the verbs and for Python alike.

spec          values of flags, arguments and job file -> `JobSpec`
request       which of them said what -> plans
gate          what preflight says of a plan first
job_python    whether this machine's Python has what the framework needs
handing_over  a plan -> run folder and scheduler
"""
