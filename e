scrun: job 1: 1 node on 1 host
