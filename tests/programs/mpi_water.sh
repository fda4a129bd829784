# Prepares a simulation of a box of water with GROMACS: writes topol.tpr in this directory.
set -e
cat >water.top <<END
#include "oplsaa.ff/forcefield.itp"
#include "oplsaa.ff/spce.itp"
[ system ]
water
[ molecules ]
END
cat >common.mdp <<END
cutoff-scheme = Verlet
coulombtype = PME
rcoulomb = 0.9
rvdw = 0.9
END
cat common.mdp - >relax.mdp <<END
integrator = steep
nsteps = 100
END
cat common.mdp - >water.mdp <<END
integrator = md
nsteps = 50
dt = 0.001
nstenergy = 10
nstlog = 10
tcoupl = v-rescale
tc-grps = System
tau-t = 0.5
ref-t = 300
gen-vel = yes
gen-temp = 300
gen-seed = 4711
END
gmx -quiet solvate -cs spc216 -box 2 2 2 -o box.gro -p water.top
# Molecules overlap where the pieces of the box meet.
gmx -quiet grompp -f relax.mdp -c box.gro -p water.top -o relax.tpr -maxwarn 2
gmx -quiet mdrun -ntmpi 1 -ntomp 1 -s relax.tpr -c relaxed.gro -g relax.log
gmx -quiet grompp -f water.mdp -c relaxed.gro -p water.top -o topol.tpr -maxwarn 2
