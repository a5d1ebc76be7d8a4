"""What the stages tell one another, declared: a module for each report, written and read through
its model.

`test_results` holds what was measured on test items. The judge and the agent may not import it
(tests/test_graph.py).
"""
