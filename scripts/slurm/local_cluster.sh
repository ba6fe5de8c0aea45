#!/usr/bin/env bash
# A real Slurm of several virtual nodes on this machine, for tests: one munged, one slurmctld and a slurmd
# per node (n1, n2, ...), on the loopback interface, without systemd, cgroups or a database.
#
#   scripts/slurm/local_cluster.sh start [--nodes N] [--cpus C] [--install]
#   scripts/slurm/local_cluster.sh env          print "export SLURM_CONF=...", for eval
#   scripts/slurm/local_cluster.sh status       exit code 0 when every node answers
#   scripts/slurm/local_cluster.sh fail NODE    the node is gone: its slurmd and all that runs on it are killed
#   scripts/slurm/local_cluster.sh revive NODE  its slurmd is started again
#   scripts/slurm/local_cluster.sh stop         cancel all jobs, end every daemon, delete the folder
#
#   --nodes N   nodes (2)
#   --cpus C    processors that each claims to have (4); they need not exist
#   --install   install Debian's packages first where Slurm is missing; needs root
#
# Partitions: main, and `urgent` on the same nodes, whose jobs preempt those of main: these get
# SIGTERM, 5 s later SIGKILL, and are queued again. Everything lies in
# ${LLMTRAIN_SLURM_DIR:-${TMPDIR:-/tmp}/llmtrain-slurm-UID}.
# Exit code: 0 done, 1 failed, 2 usage, 77 Slurm is not installed.
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

dir="${LLMTRAIN_SLURM_DIR:-${TMPDIR:-/tmp}/llmtrain-slurm-$(id -u)}"
conf="$dir/slurm.conf"
packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
# Daemons have this in their environment and hand it on to what they start: so `stop` and `fail` know
# whom they may end. A node's processes have its name, too.
mark="LLMTRAIN_SLURM_CLUSTER=$dir"

die() { printf 'local_cluster: %s\n' "$*" >&2 && exit 1; }

has_slurm() { command -v slurmctld slurmd munged sbatch >/dev/null; }

install_slurm() {
  has_slurm && return
  if [ "$install" = no ]; then
    printf 'local_cluster: Slurm is not installed (Debian: %s)\n' "$packages" >&2
    exit 77
  fi
  export DEBIAN_FRONTEND=noninteractive
  # shellcheck disable=SC2086
  { apt-get -qq update && timeout 600 apt-get -qq install -y --no-install-recommends $packages; } \
    </dev/null >/dev/null || die "cannot install $packages"
  has_slurm || die "there is no Slurm in what was installed"
}

# Processes whose environment has this line.
marked() {
  local process
  for process in /proc/[0-9]*; do
    { tr '\0' '\n' <"$process/environ"; } 2>/dev/null | grep -qxF -- "$1" && echo "${process#/proc/}"
  done
  return 0
}

end_marked() { # end_marked LINE SIGNAL...
  local line="$1" signal pids
  shift
  for signal in "$@"; do
    pids="$(marked "$line")"
    [ -n "$pids" ] || return 0
    # shellcheck disable=SC2086
    kill "-$signal" $pids 2>/dev/null || true
    for _ in $(seq 25); do
      [ -n "$(marked "$line")" ] || return 0
      sleep 0.2
    done
  done
  die "these processes do not end: $(marked "$line")"
}

wait_for() { # wait_for SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

free_ports() { # the first of so many in a row that nobody answers at
  local base port
  for base in 26810 26910 27010 27110 27210; do
    for ((port = base; port <= base + $1; ++port)); do
      if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue 2; fi
    done
    echo "$base" && return
  done
  die "no ports are free"
}

write_conf() {
  local i user base memory
  user="$(id -un)"
  base="$(free_ports "$nodes")"
  memory="$(awk '/^MemTotal:/ {print int($2 / 1024)}' /proc/meminfo)"
  cat >"$conf" <<CONF
ClusterName=local
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$base
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SrunPortRange=$((base + 1000))-$((base + 1999))
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog=$dir/task-prolog.sh
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/jobs.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=3600
SlurmctldTimeout=10
SlurmdTimeout=15
InactiveLimit=0
MessageTimeout=10
RebootProgram=/bin/true
CONF
  for ((i = 1; i <= nodes; ++i)); do
    echo "NodeName=n$i NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((base + i)) CPUs=$cpus Boards=1" \
      "SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$memory" >>"$conf"
  done
  {
    echo "PartitionName=main Nodes=n[1-$nodes] Default=YES MaxTime=INFINITE DefaultTime=10:00 PriorityTier=1"
    echo "PartitionName=urgent Nodes=n[1-$nodes] MaxTime=INFINITE DefaultTime=10:00 PriorityTier=9"
  } >>"$conf"
  echo "CgroupAutomount=no" >"$dir/cgroup.conf"
  # The names of the nodes have no addresses.
  printf '#!/bin/sh\necho "export MASTER_ADDR=127.0.0.1"\n' >"$dir/task-prolog.sh"
  chmod 0755 "$dir/task-prolog.sh"
}

all_ready() {
  [ "$(SLURM_CONF=$conf timeout 10 sinfo -h -N -p main -o '%T' | grep -cE '^(idle|mixed|allocated|completing)$')" = "$1" ]
}

start_node() {
  env "$mark" "LLMTRAIN_SLURM_NODE=$dir/$1" SLURM_CONF="$conf" slurmd -c -N "$1" -f "$conf" \
    </dev/null >"$dir/slurmd-$1.out" 2>&1 || { cat "$dir/slurmd-$1.out" >&2 && die "slurmd $1 does not start"; }
}

tell_and_die() {
  tail -n 8 "$dir"/*.log >&2 || true
  stop
  die "$1"
}

start() {
  local i
  install_slurm
  [ ! -e "$dir" ] || stop
  mkdir -p "$dir/state"
  chmod 0755 "$dir"
  write_conf
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  env "$mark" munged --force --num-threads=2 --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
    --pid-file="$dir/munged.pid" --log-file="$dir/munged.log" --seed-file="$dir/munged.seed" \
    </dev/null >/dev/null 2>&1 || tell_and_die "munged does not start"
  wait_for 30 munge -S "$dir/munge.socket" -n || tell_and_die "munged does not answer"
  env "$mark" SLURM_CONF="$conf" slurmctld -c -i -f "$conf" </dev/null >"$dir/slurmctld.out" 2>&1 ||
    tell_and_die "slurmctld does not start"
  for ((i = 1; i <= nodes; ++i)); do
    mkdir -p "$dir/spool-n$i"
    start_node "n$i"
  done
  wait_for 30 all_ready "$nodes" || tell_and_die "the nodes do not become ready"
  echo "$nodes" >"$dir/nodes"
  printf 'local_cluster: %s nodes of %s processors are ready\n' "$nodes" "$cpus"
}

stop() {
  [ -d "$dir" ] || return 0
  [ -O "$dir" ] || die "$dir belongs to somebody else"
  if [ -f "$conf" ]; then
    SLURM_CONF="$conf" timeout 10 scancel --user="$(id -un)" >/dev/null 2>&1 || true
  fi
  end_marked "$mark" TERM KILL
  rm -rf -- "$dir"
}

nodes=2 cpus=4 install=no
verb="${1:-}"
[ $# -eq 0 ] || shift
node=""
while [ $# -gt 0 ]; do
  case "$1" in
    --nodes) nodes="${2:-}" && shift ;;
    --cpus) cpus="${2:-}" && shift ;;
    --install) install=yes ;;
    n[0-9]*) node="$1" ;;
    *) printf 'local_cluster: unknown argument %s\n' "$1" >&2 && exit 2 ;;
  esac
  shift
done
[[ "$nodes" =~ ^[1-9][0-9]?$ && "$cpus" =~ ^[1-9][0-9]?$ ]] || { echo 'local_cluster: numbers from 1 to 99' >&2 && exit 2; }

case "$verb" in
  start) start ;;
  stop) stop ;;
  env) [ -f "$conf" ] && echo "export SLURM_CONF='$conf'" || die "not running" ;;
  status) [ -f "$dir/nodes" ] && all_ready "$(cat "$dir/nodes")" ;;
  fail) [ -n "$node" ] && end_marked "LLMTRAIN_SLURM_NODE=$dir/$node" KILL ;;
  revive) [ -n "$node" ] && start_node "$node" ;;
  *) sed -n '2,/^set -euo/s/^# \{0,1\}//p' "$0" | head -n -1 >&2 && exit 2 ;;
esac
