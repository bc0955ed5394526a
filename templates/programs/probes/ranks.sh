# shellcheck shell=sh
# Prints `PID,MARK,RANK` of each process of a job of clusterkit; `-` for no rank.
#
# A rank has variables of all that is above it: a task of Slurm's pmi2 has PMI_RANK, under torchrun
# the number of the node, and hands it down to ranks that have a RANK besides. So of these variables
# the first counts, and a later one tells a rank only where no process has both that value of it and
# one of those before it.
#
# A script that sets RANK to what MPI has told it is no launcher: then both are equal in what it
# starts. Of launchers that start one rank they may be equal as well; these are known by what else
# they set (torch/distributed/elastic/agent/server/local_elastic_agent.py TORCHELASTIC_RUN_ID,
# deepspeed/launcher/launch.py CROSS_RANK), and nothing but Horovod's sets HOROVOD_RANK.
ranks() {
grep -zHsE '^(CK_JOB_UID|RANK|HOROVOD_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|TORCHELASTIC_RUN_ID|CROSS_RANK)=' /proc/[0-9]*/environ | tr '\0' '\n' | awk '
BEGIN { most = split("RANK|HOROVOD_RANK|OMPI_COMM_WORLD_RANK|PMI_RANK", names, "|"); for (k = 1; k <= most; k++) place[names[k]] = k }
{
at = index($0, "/environ:"); if (!at) next
pid = substr($0, 7, at - 7); value = substr($0, at + 9)
name = value; sub(/=.*/, "", name); value = substr(value, length(name) + 2)
if (name == "CK_JOB_UID") { if (value ~ /^[A-Za-z0-9._:-]+$/) { mark[pid] = value; pids[n++] = pid } }
else if (!(name in place)) sure[pid, 1] = 1
else if (value ~ /^[0-9]+$/ && length(value) < 10) {
told[pid, place[name]] = value; if (name == "HOROVOD_RANK") sure[pid, place[name]] = 1
}
}
END {
for (i = 0; i < n; i++) { pid = pids[i]
for (k = 2; k <= most; k++) if ((pid, k) in told)
for (j = 1; j < k; j++) if ((pid, j) in told)
if (told[pid, j] != told[pid, k] || (pid, j) in sure) above[mark[pid], k, told[pid, k]] = 1
}
for (i = 0; i < n; i++) { pid = pids[i]; rank = "-"
for (k = most; k; k--) if ((pid, k) in told && !((mark[pid], k, told[pid, k]) in above))
rank = told[pid, k]
print pid "," mark[pid] "," rank }
}'
}
