/* loss_scale.c: dynamic loss scaling for fp16. The scale doubles after a window of finite steps and halves
 * after a skipped step, except for the first few skips (hysteresis). It depends only on the norm, so all
 * ranks have the same scale. */
#include "zero/engine/engine.h"

/* Defaults are DeepSpeed's. CONSTANT_SKIPS_MAX: skipped steps in a row before a constant scale is an error.
 */
enum { WINDOW = 1000, HYSTERESIS = 2, CONSTANT_SKIPS_MAX = 32 };
#define INITIAL   0x1p16f
#define SCALE_MIN 1.0f

void zr_engine_start_scaling(struct zr_engine *engine)
{
    struct zr_loss_scaling *options = &engine->options.loss_scaling;
    options->initial = options->initial > 0 ? options->initial : INITIAL;
    options->least = options->least > 0 ? options->least : SCALE_MIN;
    options->window = options->window > 0 ? options->window : WINDOW;
    options->hysteresis = options->hysteresis > 0 ? options->hysteresis : HYSTERESIS;
    engine->scaling =
        (struct zr_loss_scale){.scale = options->initial, .hysteresis_left = options->hysteresis};
}

float zr_engine_loss_scale(const zr_engine *engine)
{
    return engine && engine->options.precision == ZR_PRECISION_FP16 ? engine->scaling.scale : 1;
}

static void grow(struct zr_engine *engine)
{
    const struct zr_loss_scaling *options = &engine->options.loss_scaling;
    struct zr_loss_scale *scaling = &engine->scaling;
    scaling->skipped_in_row = 0;
    if (options->constant || ++scaling->good_steps < options->window)
        return;
    scaling->good_steps = 0;
    scaling->hysteresis_left = options->hysteresis;
    scaling->scale = scaling->scale < ZR_LOSS_SCALE_MAX / 2 ? 2 * scaling->scale : ZR_LOSS_SCALE_MAX;
}

bool zr_engine_follow_scaling(struct zr_engine *engine, bool finite)
{
    const struct zr_loss_scaling *options = &engine->options.loss_scaling;
    struct zr_loss_scale *scaling = &engine->scaling;

    if (engine->options.precision != ZR_PRECISION_FP16)
        return true;
    if (finite) {
        grow(engine);
        return true;
    }
    scaling->good_steps = 0;
    scaling->skipped_steps++;
    scaling->skipped_in_row++;
    if (options->constant)
        return scaling->skipped_in_row < CONSTANT_SKIPS_MAX;
    if (scaling->hysteresis_left > 1) {
        scaling->hysteresis_left--;
        return true;
    }
    if (scaling->scale <= options->least)
        return false;
    scaling->scale = scaling->scale / 2 > options->least ? scaling->scale / 2 : options->least;
    return true;
}

void zr_engine_scaling(const zr_engine *engine, struct zr_loss_scale *out)
{
    if (out)
        *out = engine ? engine->scaling : (struct zr_loss_scale){0};
}

zr_result zr_engine_set_scaling(zr_engine *engine, const struct zr_loss_scale *scaling)
{
    zr_result result = zr_engine_check_call(engine, __func__, scaling);
    if (result != ZR_OK)
        return result;
    if (!(scaling->scale > 0 && scaling->scale <= ZR_LOSS_SCALE_MAX) || scaling->hysteresis_left == 0)
        return zr_fail(ZR_ERR_INVALID,
                       "loss scale %g with %u skipped steps left is invalid; the saved state is damaged",
                       (double)scaling->scale, scaling->hysteresis_left);
    engine->scaling = *scaling;
    if (engine->options.loss_scaling.constant)
        engine->scaling.scale = engine->options.loss_scaling.initial;
    return ZR_OK;
}
