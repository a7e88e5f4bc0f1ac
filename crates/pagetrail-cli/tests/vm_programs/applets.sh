# Run by busybox' shell, whose applets are then parts of the same program: pipes of its children, and the files that they write.
set -eu
trap 'echo "end with $?"' EXIT

seq 3000 | awk '{ print ($1 * 7919) % 3001, "line" $1 }' > numbers
sort -n numbers | uniq | tail -n 3
sort -r -k2 numbers | head -n 40 | tee begin | wc
cut -d ' ' -f 2 numbers | tr a-z A-Z | sed -n '100,102p'
grep -c 'line1' numbers
awk '{ sum[$1 % 7] += $1 } END { for (i = 0; i < 7; i++) printf "%d %.3f\n", i, sum[i] / NR > "sums" }' numbers

mkdir -p tree/a/b tree/c
for n in 1 2 3 4 5; do
    printf '%s\n' "file $n" > "tree/a/file$n"
done
cp tree/a/file1 tree/c/copy
ln -s ../a/file2 tree/c/link
mv tree/a/file3 tree/a/b/moved
chmod 640 tree/a/file4
rm tree/a/file5
find tree | sort
find tree -type f -exec cat {} + | sort | md5sum
mkdir unpacked
tar -cf - tree | tar -xf - -C unpacked
diff -r tree unpacked/tree && echo no difference

gzip -9 < numbers > numbers.gz
gunzip < numbers.gz | cmp - numbers && echo unzipped
dd if=numbers of=middle bs=100 skip=7 count=50 2> /dev/null
od -A d -t x1 middle | tail -n 2

cat > here << END
$((6 * 7)) and $(expr 5 + 5)
END
cat here
sum() {
    n=0
    while read -r a _; do
        n=$((n + a % 3))
    done
    echo "$n"
}
head -n 300 numbers | sum
{ echo first > log; } &
wait $!
echo second >> log
cat log
sh -c 'kill -TERM $$' || echo "killed: $?"
(exit 4) || echo "status: $?"
exit 6
