"""``lnrnn demo axes``: which values share a mean under layer norm and batch norm, found out by calls.

Claims. Ba, Kiros, Hinton, Layer Normalization (arXiv 1607.06450), section 3: layer norm takes mean and
variance over the units of one case, at each time step by itself, and does the same in training and at
inference. Ioffe, Szegedy, Batch Normalization (arXiv 1502.03167), section 3: batch norm takes them per
feature over the batch, in a convolution per channel over batch and places, and stores averages of them
for inference; and with the gain equal to sigma and the bias equal to mu it gives its input back.
Cooijmans et al. (arXiv 1603.09025), section 3: in a recurrent network batch norm takes them for each time
step by itself.

What is computed. Arrays of four layouts, NC (4, 3), NCL (3, 3, 4), NCHW (2, 3, 2, 2) and TBH (4, 3, 5),
values normal by the seed, go through lnrnn.BatchNorm and lnrnn.LayerNorm in float64; TBH goes through
lnrnn.RNN with the norm inside, W_ih = 1, W_hh = 0 and no nonlinearity, so that its output is the norm of
its input. A further case is batch norm over batch and steps together, BatchNorm on TBH turned to (B, H,
T), as Deep Speech 2 (arXiv 1512.02595) has it. No group may have two values: normalised they are -1 and 1
whatever they were.

Measure. One value of the input is changed at a time, by 1, and the outputs that differ in any bit are
noted. Grouping: which values move together; they share mean and variance. The groups must not overlap,
and each group's own mean and deviation must give the output (to 1e-5). Stored: the numbers of
state_dict() that are not trained. Inference: the same change after one call in training. Given back: with
gain and bias set to sigma and mu, the groups whose values come back (to 1e-5 of the root mean square). A
gain has the shape the layer gives it; where more groups than one share it, sigma and mu are those of the
first of them.

Verdict rule, over three parts, each of which must come out alike under every seed. Grouping: as claimed
in all nine cases (CLAIMED). Storage: layer norm stores nothing and groups alike at inference; batch norm
stores a mean and a variance for each of its groups, and at inference a changed value moves itself alone.
Given back: under batch norm in NC, NCL and NCHW every group comes back at once. Confirmed: all three
hold. Not confirmed: none. Else it depends on the part. How many groups layer norm and batch norm per step
give back is reported; the paper claims nothing there.
"""
