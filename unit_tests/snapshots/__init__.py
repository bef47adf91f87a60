"""A model of snapshots: Chandy and Lamport's, Flink's and Lockstep's, on one graph of processes and channels."""
