"""From what a user asks for to a job that is handed over, for the verbs and for Python alike.

request    values of flags, arguments and job file -> `JobSpec` -> plans
preflight  what preflight says of a plan first
packages   whether this machine's Python has what the framework needs
hand_over  a plan -> run folder and scheduler
submit     all of these, for one job
"""
