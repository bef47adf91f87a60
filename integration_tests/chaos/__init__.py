"""Chaos: a real pipeline under constant load, faults drawn by a seed, and checkers that know nothing of Lockstep.

``make chaos ARGS="--rounds 20 --seed 7"``. What is where: ``cluster`` (brokers behind a network that can be cut), ``site``
(topics, table, checkpoint directory, load and drivers), ``nemeses`` (the faults), ``watchers`` (readers that look all the
time), ``audit`` (what must hold at the end), ``run`` (rounds, tally, report).
"""
