# shellcheck shell=sh disable=SC2043
# Put those of the columns which the driver knows into `ask`.
known=$(nvidia-smi --help-query-gpu 2>/dev/null)
ask=''
for f in @COLUMNS@; do
case $f in clocks_throttle*) case $ask in *clocks_event_reasons*) continue ;; esac ;; esac
case $known in *"\"$f\""*) ask=$ask${ask:+,}$f ;; esac
done
