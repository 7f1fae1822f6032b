/* Rows times a panel of packed weights on matrix tiles, whatever the weights are.
 *
 * Sixteen words of a vector of outputs, which a panel holds row by row, are a tile as they stand. Words are filled up
 * with 0 to whole tiles (mm_words). One row takes the time of sixteen: that of loading the weights. So a row has the
 * same bits beside others and alone. */
#ifndef LNRNN_MATMUL_TILES_H
#define LNRNN_MATMUL_TILES_H

#include "lnrnn/kernels/matmul_tile.h"
#include "lnrnn/simd/units.h"

/* Some vectors of outputs of one panel, and one or two matrices of rows. */
typedef struct {
    const uint32_t *w;    /* (words, panel): the first of these outputs' words */
    ptrdiff_t panel;      /* bytes from a word of an output to its next */
    const uint32_t *a[2]; /* (height, words), row stride as bytes */
    ptrdiff_t as;
    void *c[2]; /* (height, vecs * 16) of 32 bits, row stride cs bytes */
    ptrdiff_t cs;
    int add;      /* to what c holds */
    int prefetch; /* the weights that come */
} tile_job;

/* blocks (of rows) times vecs <= 4; with int8 they are constants. Tiles: the sums, 0 to 3; rows, 4 and 5; weights, 6
 * and 7. */
LNRNN_INLINE void tile_blocks(const int int8, const int blocks, const int vecs, size_t words, lnrnn_tiles *t,
                              const tile_job *b)
{
    LNRNN_FOR_EACH (i, blocks)
        LNRNN_FOR_EACH (v, vecs)
            if (b->add)
                tile_load(t, i * vecs + v, (char *)b->c[i] + v * TILE_BYTES, b->cs);
            else
                tile_zero(t, i * vecs + v);
    const char *w = (const char *)b->w;
    for (size_t j = 0; j < words; j += TILE_WORDS, w += TILE_HEIGHT * b->panel) {
        if (b->prefetch)
            for (int r = 0; r < TILE_HEIGHT; r++)
                LNRNN_FOR_EACH (v, vecs)
                    v32_prefetch((const float *)(w + r * b->panel) + v * TILE_WORDS + LNRNN_PREFETCH_TILE);
        LNRNN_FOR_EACH (i, blocks)
            tile_load(t, 4 + i, b->a[i] + j, b->as);
        LNRNN_FOR_EACH (v, vecs) {
            tile_load(t, 6 + v % 2, w + v * TILE_BYTES, b->panel);
            LNRNN_FOR_EACH (i, blocks)
                if (int8)
                    tile_dot_u8(t, i * vecs + v, 4 + i, 6 + v % 2);
                else
                    tile_dot_bf16(t, i * vecs + v, 4 + i, 6 + v % 2);
        }
    }
    LNRNN_FOR_EACH (i, blocks)
        LNRNN_FOR_EACH (v, vecs)
            tile_store(t, i * vecs + v, (char *)b->c[i] + v * TILE_BYTES, b->cs);
}

/* All vecs vectors of a panel, 1 to 3: at once for one block, two at a time for two, as four tiles of sums are the most
 * beside two of rows and two of weights. */
LNRNN_INLINE void tile_panel(const int int8, int blocks, int vecs, size_t words, lnrnn_tiles *t, tile_job b)
{
    if (blocks == 1) {
        switch (vecs) {
        case 1: tile_blocks(int8, 1, 1, words, t, &b); return;
        case 2: tile_blocks(int8, 1, 2, words, t, &b); return;
        default: tile_blocks(int8, 1, 3, words, t, &b); return;
        }
    }
    if (vecs > 1) {
        tile_blocks(int8, 2, 2, words, t, &b);
        b.w += 2 * TILE_WORDS;
        b.c[0] = (char *)b.c[0] + 2 * TILE_BYTES, b.c[1] = (char *)b.c[1] + 2 * TILE_BYTES;
    }
    if (vecs % 2)
        tile_blocks(int8, 2, 1, words, t, &b);
}

#endif
