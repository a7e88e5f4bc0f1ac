# Tokyo Cabinet's databases: a hash, a tree, a table. What its tools are to run under, if anything, is the script's arguments.
"$@" tchmgr create -tl words.tch 500
"$@" tchmgr importtsv words.tch words.tsv
"$@" tchmgr put words.tch key17 'another value'
"$@" tchmgr get words.tch key17
"$@" tchmgr get words.tch none
echo "none such: $?"
"$@" tchmgr out words.tch key18
"$@" tchmgr optimize words.tch
"$@" tchmgr list -pv words.tch > hash.tsv

"$@" tcbmgr create -td words.tcb 8 16
"$@" tcbmgr importtsv words.tcb words.tsv
"$@" tcbmgr list -m 5 -j key2 -pv words.tcb
"$@" tcbmgr optimize words.tcb
"$@" tcbmgr list -pv words.tcb > tree.tsv

"$@" tctmgr create people.tct
for n in 1 2 3 4 5 6 7 8 9; do
    "$@" tctmgr put people.tct "$n" name "person $n" weight $((n * 37 % 11))
done
"$@" tctmgr setindex -it dec people.tct weight
"$@" tctmgr search -pv -ord weight numdesc people.tct weight numgt 4
wc -l hash.tsv tree.tsv
