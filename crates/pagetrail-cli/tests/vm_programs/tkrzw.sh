# Tkrzw's databases, a hash and a tree. What its tool is to run under, if anything, is the script's arguments.
for kind in hash tree; do
    "$@" tkrzw_dbm_util create --dbm $kind words.$kind
    "$@" tkrzw_dbm_util import --dbm $kind --tsv words.$kind words.tsv
    "$@" tkrzw_dbm_util get --dbm $kind words.$kind key17
    "$@" tkrzw_dbm_util get --dbm $kind words.$kind none
    echo "none such: $?"
    "$@" tkrzw_dbm_util set --dbm $kind --append , words.$kind key17 more
    "$@" tkrzw_dbm_util remove --dbm $kind words.$kind key18
    "$@" tkrzw_dbm_util rebuild --dbm $kind words.$kind | sed 's/(elapsed.*//'
    "$@" tkrzw_dbm_util export --dbm $kind --tsv words.$kind $kind.tsv
done
"$@" tkrzw_dbm_util list --dbm tree --move jump --jump_key key2 --items 5 words.tree
wc -l hash.tsv
# The databases themselves know when they were written.
rm words.hash words.tree
