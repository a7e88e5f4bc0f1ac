# Pipes of programs. What they are to run under, if anything, is the script's arguments.
"$@" seq 2000 | "$@" awk '{ print $1 % 97, $1 }' | "$@" sort -n -k 1,1 -k 2,2 | "$@" tee sorted | "$@" gzip -n -9 > sorted.gz
"$@" gzip -d -c sorted.gz | "$@" cmp - sorted
echo "compared: $?"
"$@" yes | "$@" head -n 3
"$@" sed 5q < sorted
"$@" find . -name 'sorted*' -size +0 -exec wc -c {} + | "$@" sort
"$@" sh -c 'exit 7'
echo "status: $?"
