"""`make bench`: what a delta costs, side by side on one machine and one load.

One replica stand-in (upstream.py) and one load generator (load.py) serve every contender (contenders.py): they run in
processes of their own and do nothing per delta but what they must, so that the thing between them is what gets measured.
Absolute figures belong to the machine that they came from; the ratios are what to look at.
"""
