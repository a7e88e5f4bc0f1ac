# What scripts for bash are made of.
trap 'echo "end with $?"' EXIT
ulimit -Sa

declare -A values
while IFS=: read -r name value; do
    values[$name]=$value
done << 'END'
one:1
two:$2
END
printf '%s\n' "one=${values[one]}" "two=${values[two]}"
mapfile -t lines < <(seq 3 | tac)
echo "${#lines[@]} lines: ${lines[*]}"
text='some text with blanks'
echo "${text//t/T} ${text^^} ${#text} $(tr -d ' ' <<< "$text")"
[[ $text =~ (t[a-z]+)\ with ]] && echo "matched ${BASH_REMATCH[1]}"

yes | head -n 2
echo "pipe: ${PIPESTATUS[*]}"
set -o pipefail
false | true
echo "pipe that fails: $?"
diff <(seq 1 5) <(seq 2 6)
echo "diff: $?"
exec {to}> >(sort -r > reversed)
sorting=$!
seq 20 >&"$to"
exec {to}>&-
wait "$sorting"
seq 1000 | while read -r n; do
    ((n % 10)) || echo "$n"
done > tens
wc -l < tens

coproc doubles { while read -r n; do echo $((2 * n)); done; }
pid=$doubles_PID to=${doubles[1]} from=${doubles[0]}
echo 21 >&"$to"
read -r answer <&"$from"
echo "coprocess: $answer"
exec {to}>&-
wait "$pid"
echo "its end: $?"

mkfifo fifo
exec {both}<> fifo
read -r -t 0.05 -u "$both" line
echo "nothing to read: $(($? > 128))"
echo a line >&"$both"
read -r -u "$both" line
echo "read: $line"
trap 'echo "signal in ${FUNCNAME[0]:-the script}"' USR1
kill -USR1 $$
raise() { kill -USR1 $$; }
raise
(trap 'echo a signal of its own' USR2; kill -USR2 "$BASHPID"; exit 5)
echo "a part: $?"
{ (kill -KILL "$BASHPID"); } 2> /dev/null
echo "killed: $?"
{ echo it runs >&"$both"; exec sleep 1000; } &
read -r -u "$both" line
kill $!
wait $! 2> /dev/null
echo "ended: $?"
rm fifo
trap '' TERM
kill -TERM $$
trap 'echo "line $LINENO fails"' ERR
false
trap - ERR

(cd / && pwd)
exec 2> errors
no_such_command
echo "none such: $?"
exit 9
