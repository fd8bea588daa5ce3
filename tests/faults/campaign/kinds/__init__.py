"""The kinds of faults. `KINDS` of `tests.faults.campaign.kinds.all` has each of them."""
