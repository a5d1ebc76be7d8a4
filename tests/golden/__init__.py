"""Small reports of every kind, with the branches that the default run does not take, as the stages write them."""
