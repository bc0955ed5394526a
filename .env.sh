export PATH=/tmp/w-diag/.venv/bin:$PATH CLUSTERKIT_LAB=/tmp/l-diag CLUSTERKIT_FIXTURES=/work/shared/fixtures
cd /tmp/w-diag
