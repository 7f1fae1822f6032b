"""``lnrnn demo batch-size``: what small batches do to layer norm and to batch norm.

Claim: "layer normalization is robust to the batch-sizes", batch norm is not (Ba, Kiros, Hinton, Layer
Normalization, arXiv 1607.06450, section 6.6, batches of 128 and 4), and LN works "in the pure online regime
with batch size 1" (section 1), where batch norm has nothing to average.

Measured: scikit-learn's digits, permutation-invariant, in a net of 64-32-32-10 with ReLU, norm in the hidden
layers, Adam without decay, EPOCHS passes over 800 images whatever the batch: each of BATCHES, without norm,
with LN, with BN. Every norm at every batch size tries the same RATES and keeps the one that is right most often
on held-out training images, on average over the seeds (seed s holds out fold s mod 5). Only the chosen
networks see the 797 test images. Equal passes mean more updates in small batches, which is to their advantage:
what a norm loses there it loses in spite of them.

BN is read in two ways, each with a rate of its own, from the same networks: with the running statistics of
training (momentum 0.1), and with statistics recomputed after training over the 800 images as one batch. Its
gap is the accuracy in training mode, on test images in random batches of the size of the training, less the
accuracy in inference mode.

Verdict: the change of a test accuracy from batch LARGE to b is paired over the seeds, with a 95 % interval.
At b the claim holds for a way of reading BN where LN's interval lies above -MARGIN and BN's lies below
-MARGIN. It is confirmed if it holds at each of SMALL for both ways, not confirmed if nowhere; else it depends
on the batch size, or on the statistics, or on both. Batch 1 is reported, and decides nothing: that BN refuses
it follows from its definition.
"""

from __future__ import annotations
