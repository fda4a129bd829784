//! What every scenario needs: where the binaries are, a watchdog, a private environment.
