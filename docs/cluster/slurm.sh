#!/usr/bin/env bash
#SBATCH --job-name=hwmatrix
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=04:00:00
# Workers of a cluster on the nodes of a Slurm job: sbatch docs/cluster/slurm.sh tls://HEAD:8786
# The scheduler runs on a machine that the nodes reach. The keys are in the home folder, which the nodes share.
set -euo pipefail
srun hwmatrix cluster worker "${1:?name the address of the scheduler}"
