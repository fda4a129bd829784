// A program whose names rustc mangles.
use std::io::Write;

mod solver {
    #[inline(never)]
    pub fn relax(depth: u32) {
        if depth == 0 {
            loop {
                std::thread::park();
            }
        }
        relax(depth - 1);
        std::hint::black_box(depth);
    }
}

fn main() {
    println!("ready");
    std::io::stdout().flush().unwrap();
    solver::relax(2);
}
