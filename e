scrun: job 1: 2 nodes on 1 host
