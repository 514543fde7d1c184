#!/bin/sh
# Runs a command, such as a deployment, while nobody else runs one under the same name:
#
#   deploy.sh NAME COMMAND [ARGUMENT…]
#
# It needs curl, and `coordination serve` at $COORDINATION_SERVICE. The command finds the fence in $FENCE, and is ended when the
# lock may be lost. Ends with the command's status; 75: not now, as when somebody else has the lock; 70: it was lost.
set -eu
service=${COORDINATION_SERVICE:-http://localhost:8420}
name=$1
shift

# What a text of JSON has in this field, if that is a number or a word.
field() { printf %s "$1" | sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p"; }
call() { curl --silent --fail --max-time "$1" --request "$2" "$service/v1/$3"; }

# The key makes it safe to send this again: curl does so while the service is about to stop, or its store is away.
key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
hold=$(curl --silent --show-error --fail --retry 5 --max-time 40 --header "Idempotency-Key: $key" \
    --data '{"wait_ms":30000,"lease_ms":20000,"title":"deploy.sh"}' "$service/v1/locks/$name") || {
    echo "deploy.sh: $name: not now" >&2
    exit 75
}
id=$(field "$hold" id)

FENCE=$(field "$hold" fence) "$@" &
command=$!

# Renews while the command runs, which ends if this script is killed, and in time: each turn takes five seconds at most, and the next one comes before the lock ends. What is left is what the service
# says: if it is about to stop, or its store is away, it answers, and the lock ends all the same. A refusal is no failure of the network.
renew() {
    left=$(field "$hold" expires_in_ms)
    while sleep 3 >/dev/null 2>&1 && kill -0 "$command" 2>/dev/null; do
        if ! kill -0 $$ 2>/dev/null; then
            kill "$command" 2>/dev/null
            return
        fi
        left=$((left - 5000))
        if told=$(call 2 PUT "holds/$id"); then
            left=$(field "$told" expires_in_ms)
        elif [ $? = 22 ]; then
            left=0
        fi
        if [ "$left" -lt 6000 ]; then
            echo "deploy.sh: $name: the lock may be lost" >&2
            kill "$command" 2>/dev/null
            return
        fi
    done
}
renew &
renewing=$!
trap 'kill "$command" 2>/dev/null' INT TERM

# A signal interrupts the wait, and not what is waited for.
while :; do
    status=0
    wait "$command" || status=$?
    kill -0 "$command" 2>/dev/null || break
done
kill "$renewing" 2>/dev/null || true
if ! call 10 DELETE "holds/$id"; then
    echo "deploy.sh: $name: the lock was lost: see whether somebody else has deployed meanwhile" >&2
    [ "$status" != 0 ] || status=70
fi
exit "$status"
