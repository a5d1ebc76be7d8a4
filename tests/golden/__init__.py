"""Small reports of every kind, with the branches that the default run does not take, as the stages
write them.
"""

from pathlib import Path

HERE = Path(__file__).parent
