"""Run a script at several sizes and tell how well it scales, and why not better.

sizes     what was asked for -> sizes to run at
rates     throughput lines of one run -> its rate
evidence  what the nodes did meanwhile
causes    rates and evidence -> what to look at
result    all of it as a value, and as a document
averages  of readings, some of which may be missing
words     figures as a person reads them
sized     one job -> the same job at several sizes
page      the result as HTML
plot      the result as a picture
lines     the log of a run that grows -> throughput lines
nodes     ask the nodes of a running job
measure   run the jobs, one after another
"""
