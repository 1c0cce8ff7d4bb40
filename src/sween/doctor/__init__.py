"""What a bug report needs: the installation described, and its bounds, noise and votes tested.

Nothing that could be broken is imported into the process that asks.
"""

from sween.doctor.examination import Examination, as_text, examine, failed_checks

__all__ = ["Examination", "as_text", "examine", "failed_checks"]
