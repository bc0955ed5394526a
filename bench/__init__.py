"""What clusterkit costs, measured: ``python -m bench`` (docs/benchmarks.md).

startup   how long the command line takes to answer
race      from the submit command to the first line of the training script, against plain sbatch
stages    where the time of a race went
fanout    one script on 64 addresses by ssh, against clush and pdsh
judge     what 4,096 nodes have said, judged
trace/    what notes the stages: an sbatch, a bash start-up file and a sitecustomize
figures   medians, percentiles, ratios
report    the table and the JSON document
"""
