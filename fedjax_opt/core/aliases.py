"""Names for trees of arrays whose structure each algorithm, model or data set chooses for itself."""

from typing import Any

import chex

Tree = Any
# What an algorithm's functions hand each other, in the order of a round.
ServerState = ClientState = Message = Report = LocalState = Upload = Contribution = Tree
# What an aggregator, a controller or an observer remembers.
Memory = Tree
# A model's parameters, and what of it is not trained.
Params = ModelState = Tree
# Examples `[n, ...]`, and some of them side by side.
Examples = Batch = Tree
# One number, which may be traced.
Number = chex.Numeric
# Numbers as a user writes them: one, a list or an array.
Values = Any
