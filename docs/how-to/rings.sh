#!/usr/bin/env bash
# Puts a Redis cluster on two counter-rotating rings of machines, see fabric.md.
#
#     bash rings.sh ADDRESS...     the machines' IP addresses in the order of the circle
#
# The cluster becomes what the arguments say, and traffic may go on meanwhile: new machines get
# masters, slots and replicas; masters that were taken over come home; machines that are not named
# are drained and forgotten. A run that was interrupted is repeated; `redis-cli --cluster fix` comes
# first where it ended while a slot was on its way.
#
# REPLICAS (2) is the number of replicas of each master, PORT (6379) the first port of each machine,
# REDIS_CLI the program with options that all calls need, such as "redis-cli --tls --cacert ca.pem".
# REDISCLI_AUTH holds the password.
set -euo pipefail

machines=("$@")
n=$#
replicas=${REPLICAS:-2}
port=${PORT:-6379}
if ((n <= replicas)); then
  echo "rings.sh: $n machines; allowed: more than the replicas of each master, $replicas" >&2
  exit 2
fi
first=$1:$port
masters=()
for machine in "${machines[@]}"; do
  masters+=("$machine:$port" "$machine:$((port + 1))")
done

cli() { ${REDIS_CLI:-redis-cli} "$@"; }
ask() { cli -e -h "${1%:*}" -p "${1##*:}" "${@:2}"; }
is_new() { [[ $(ask "$1" cluster info) == *cluster_known_nodes:1[!0-9]* ]]; }

# Wait until all nodes that are alive agree on who has which slot.
settle() { until cli --cluster check "$first" > /dev/null 2>&1; do sleep 0.5; done; }

# Add a server to the cluster, and wait until the others know it and it knows who has which slot.
# Until then the next `add-node` finds a node that does not agree, and ends.
add() {
  local id
  cli --cluster add-node "$1" "$first" "${@:2}"
  id=$(ask "$1" cluster myid)
  until [[ $(ask "$first" cluster nodes) == *"$id "* ]]; do sleep 0.2; done
  settle
}

# Share the slots out among the masters of the rings; other masters get none.
share_slots() {
  local weights=() id address flags
  while read -r id address flags _; do
    if [[ $flags == *master* && $flags != *fail* &&
      " ${masters[*]} " != *" ${address%@*} "* ]]; then
      weights+=("$id=0")
    fi
  done < <(ask "$first" cluster nodes)
  cli --cluster rebalance "$first" ${weights:+--cluster-weight "${weights[@]}"} "$@"
  settle
}

# Make a server the replica of a master, and wait until it has a copy.
place() {
  local master
  master=$(ask "$2" cluster myid)
  if is_new "$1"; then
    add "$1" --cluster-slave --cluster-master-id "$master"
  elif [[ $(ask "$1" cluster nodes) != *"myself,slave $master "* ]]; then
    echo "$1 becomes a replica of $2"
    ask "$1" cluster replicate "$master"
  fi
  until [[ $(ask "$1" info replication) == *master_link_status:up* ]]; do sleep 0.2; done
}

if is_new "$first"; then
  cli --cluster create "${masters[@]}" --cluster-yes
fi
settle
for master in "${masters[@]}"; do
  if is_new "$master"; then
    add "$master"
  elif [[ $(ask "$master" role) == slave* ]]; then
    echo "$master becomes the master again"
    ask "$master" cluster failover
    until [[ $(ask "$master" role) == master* ]]; do sleep 0.2; done
  fi
  settle
done

# A machine that leaves gives its slots away while it still has replicas; a new one gets slots when
# it has replicas. All first replicas are placed before the second ones: no master is without.
share_slots
for ((step = 1; step <= replicas; step++)); do
  for ((at = 0; at < n; at++)); do
    place "${machines[(at + step) % n]}:$((port + 2 * step))" "${machines[at]}:$port"
    place "${machines[(at + n - step) % n]}:$((port + 2 * step + 1))" \
      "${machines[at]}:$((port + 1))"
  done
done
share_slots --cluster-use-empty-masters

while read -r id address _; do
  host=${address%:*}
  if [[ " ${machines[*]} " != *" $host "* ]]; then
    echo "${address%@*} leaves the cluster"
    cli --cluster call "$first" cluster forget "$id" > /dev/null 2>&1 || true
    # A living one becomes as new. redis-cli adds no server that has functions.
    ask "${address%@*}" cluster reset hard > /dev/null 2>&1 &&
      ask "${address%@*}" function flush > /dev/null || true
  fi
done < <(ask "$first" cluster nodes)
settle
