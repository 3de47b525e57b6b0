#!/usr/bin/env bash
#SBATCH --job-name=hwmatrix
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --time=04:00:00
# Workers of a cluster on the nodes of a Slurm job: sbatch docs/cluster/slurm.sh tls://HEAD:8786
# With --no-kill, a node that fails takes only its own worker with it.
# The scheduler runs on a machine that the nodes reach. The keys are in the home folder, which the nodes share.
set -euo pipefail
srun --no-kill hwmatrix cluster worker "${1:?name the address of the scheduler}"
