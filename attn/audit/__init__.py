"""Is this mask what was meant, and does anything leak through this model?

masks    what is wrong with a mask, seen from the mask alone
leaks    which inputs change which outputs, against the mask that was meant
cover    few sets of inputs that test many pairs at once
probe    changing inputs of any callable, and comparing outputs bit for bit
report   what was found, in sentences
"""

from attn.audit.leaks import find_leaks, influence
from attn.audit.masks import MaskAudit, audit_mask
from attn.audit.report import LeakReport

__all__ = ["LeakReport", "MaskAudit", "audit_mask", "find_leaks", "influence"]
