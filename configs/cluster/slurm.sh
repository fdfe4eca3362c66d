#!/usr/bin/env bash
# STARK on Slurm: sbatch configs/cluster/slurm.sh bench --kernelbench DIR --target cuda --model PROVIDER:NAME
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
set -euo pipefail
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_TOKEN
head=$(hostname --ip-address | cut -d' ' -f1)
# Each step ends with its own Ray; nothing here ends another user's.
ray start --head --block --node-ip-address="$head" --port=6379 --include-dashboard=false &
ray_head=$!
trap 'kill "$ray_head"' EXIT
until ray status --address="$head:6379" >/dev/null 2>&1; do sleep 2; done
if ((SLURM_NNODES > 1)); then
  srun --nodes=$((SLURM_NNODES - 1)) --ntasks=$((SLURM_NNODES - 1)) --exclude="$(hostname -s)" \
    env -u ANTHROPIC_API_KEY -u OPENAI_API_KEY ray start --block --address="$head:6379" &
fi
stark "$@" --ray-address="$head:6379"
