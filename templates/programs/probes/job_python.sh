# shellcheck shell=sh
python=@PYTHON@
command -v "$python" >/dev/null || { echo absent=1; echo end; exit 0; }
"$python" -c @PROGRAM@ @PACKAGE@ && echo end
