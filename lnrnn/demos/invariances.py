"""``lnrnn demo invariances``: Table 1 of the layer norm paper, entry by entry.

Claim. Ba, Kiros, Hinton, Layer Normalization (arXiv 1607.06450), section 5.1 and Table 1: which of six changes
of weights and data leave the output of a normalised layer as it was. Three norms by six changes are 18
entries, 10 yes and 8 no. The text of the section says of weight norm the opposite of one entry ("all the
normalization methods are invariant to re-scaling the dataset"; the table: weight norm is not), and this
decides between them.

What is computed. Summed inputs a = W x of 64 units for 128 cases: frames of Japanese Vowels (12 channels),
drawn by the seed from the training utterances; W is normal with variance 1/12. y = (a - mu) / sigma, with
lnrnn.batch_norm (statistics of the batch) and lnrnn.layer_norm; weight norm (Salimans, Kingma, arXiv
1602.07868) is lnrnn.rms_norm of the rows of W, divided by the square root of 12, times x. Gain, bias and
nonlinearity come after y, unit by unit, and are the same before and after the change; they are left out.

The changes: W scaled: all weights times a factor. W recentred: one vector added to the incoming weights of
every unit. w scaled: the weights of one unit times a factor. D scaled: all cases times a factor. D recentred:
one vector added to every case. x scaled: one case times a factor. Factors are 0.01, 0.3, 3, 100; vectors are
normal, 0.3, 3 and 100 times as large as the weights or data they are added to (root mean square). Unit,
case and vectors are drawn by the seed.

Measure. The deviation of the changed output y' from y: the root mean square of y' - y over that of y, within a
case and within a unit, and of all cases and units the worst.

Verdict rule. In float64 with eps = 0 an entry is yes if the largest deviation over seeds and amounts is at most
YES = 1e-10 (rounding, 1e-16, times what is lost to cancellation under a shift of 100, with room for a small
variance), no if the smallest is at least NO = 1e-2, else undecided: these are statements about every input,
so the extremes over the seeds decide and not a mean. Confirmed: all 18 as in the table. Not confirmed: some
entry is decided the other way. Depends: neither, some entries are undecided.

Beyond the table, and outside the verdict: the same 18 entries with the float32 kernels at eps = 1e-5; the
deviation over eight decades of the scale beside the one that eps must cause; factors below 0; batch norm with
stored statistics, as at inference.
"""
