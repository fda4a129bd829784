# Runs one of the two processes of fi_pingpong(1): the first listens, the second connects to it.
case ${RANK-$SCORE_SELF_NODE} in
0) exec fi_pingpong -p "$FI_PROVIDER" -e rdm -c -B 47592 -I 20 -S all ;;
esac
# The first process may not listen yet.
for attempt in 1 2 3 4 5; do
    sleep 1
    fi_pingpong -p "$FI_PROVIDER" -e rdm -c -P 47592 -I 20 -S all 127.0.0.1 && exit 0
done
exit 1
