"""Is this mask what was meant, and does anything leak through this model?

findings  what is wrong with a mask, seen from the mask alone
patterns  what a square mask looks like
leaks     which inputs change which outputs, against the mask that was meant
cover     few pools of inputs that test many pairs at once
probe     changing inputs of any callable, and comparing outputs
entries   the array that is meant in a tuple or a dictionary
stack     several changes in one call, where rows of a batch are treated alike
rounding  a change that comes from an input, or only from the order of a sum
progress  how far the calls are
report    what was found, in sentences
"""

from attn.audit.findings import MaskAudit, audit_mask
from attn.audit.leaks import find_leaks, influence
from attn.audit.report import LeakReport

__all__ = ["LeakReport", "MaskAudit", "audit_mask", "find_leaks", "influence"]
