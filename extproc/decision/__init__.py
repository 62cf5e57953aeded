"""Pure: states, events, effects, causes, gates, policy, budget, replay cost, identity, lease arithmetic, health verdicts.

Time and ids are arguments. No I/O, clock, randomness or logging, so that it can be simulated and tested exhaustively.
"""
