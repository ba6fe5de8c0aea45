# shellcheck shell=bash disable=SC2154,SC2034
# Losses of training in bf16 beside PyTorch's, eager and compiled, from the same weights on the same text. Sourced by
# gpu_check.sh.

# Text for the runs: $GPU_CHECK_TEXT, or what the machine has.
gather_text() {
  local folders="${GPU_CHECK_TEXT:-$root /usr/share/doc /usr/include /usr/local/lib /usr/lib/python3 /opt}"
  # shellcheck disable=SC2086  # several
  try text 60 python3 "$root/scripts/bench/gather_text.py" "$work/text.jsonl" "${GPU_CHECK_TEXT_BYTES:-16000000}" $folders ||
    return 1
  row "text" "$(tail -n 1 "$logs/text.log")"
}

# of_seed SEED: the recipe's settings for it; the model's are those of torch_step.py, the optimizer's of torch_train.py.
# GPU_CHECK_OURS has further ones.
of_seed() {
  # shellcheck disable=SC2086  # words
  printf '%s\n' "$root/configs/$recipe.yaml" run.seed="$1" run.device="${GPU_CHECK_DEVICE:-cuda}" run.output_dir="$work/losses/$1/run" \
    "data.sources=[{path: $work/text.jsonl, max_document_bytes: 65536}]" "data.cache_dir=$work/cache" data.packing={cross_document_attention:\ true,\ reset_positions:\ false} \
    "tokenizer={type: bpe, vocab_size: $vocabulary}" \
    model.init_from="$work/losses/$1/weights" "${model[@]}" training.seq_len="$tokens" \
    training.micro_batch_size="$batch" training.global_batch_size="$batch" training.max_steps="$count" \
    "optimizer={name: adamw, lr: 3.0e-4, betas: [0.9, 0.95], eps: 1.0e-8, weight_decay: 0.1, max_grad_norm: 1.0}" \
    "lr_scheduler={type: cosine, warmup: 20 steps, min_lr_ratio: 1.0}" precision.compute=bf16 checkpoint.interval=1000000 \
    eval.interval=1000000 metrics.interval=1 "run.product_cache=$work/products.txt" ${GPU_CHECK_OURS:-}
}

# losses MODEL: its losses over two seeds.
losses() {
  local batch count="${steps:-200}" tokens=1024 vocabulary=8192 recipe model=() seed words seeds=(1 2) name setting
  case "$1" in
    124m)
      recipe=gpt2-124m batch=16
      model=(model.attn_pdrop=0 model.embd_pdrop=0 model.resid_pdrop=0)
      ;;
    1b)
      recipe=llama3-8b batch=4
      model=(model.vocab_size=32768 model.hidden_size=2048 model.intermediate_size=8192 model.num_hidden_layers=16
        model.num_attention_heads=32 model.num_key_value_heads=8 model.max_position_embeddings=1024
        model.rope_theta=10000 activation_checkpoint.mode=none)
      ;;
    tiny-llama)  # to try this where there is no GPU
      recipe=llama3-8b batch=2 tokens=256 vocabulary=1024
      model=(model.vocab_size=8192 model.hidden_size=256 model.intermediate_size=704 model.num_hidden_layers=4
        model.num_attention_heads=4 model.num_key_value_heads=4 model.max_position_embeddings=256
        model.rope_theta=10000 activation_checkpoint.mode=none)
      ;;
  esac
  local on_gpu="${GPU_CHECK_TORCH_DEVICE-cuda}"
  gather_text || return 0
  # shellcheck disable=SC2086  # none or one
  theirs=1 try weights 120 python3 "$root/scripts/bench/torch_train.py" weights "$1" "$work/losses" "${seeds[@]}" $on_gpu ||
    return 0
  for seed in "${seeds[@]}"; do
    mapfile -t words < <(of_seed "$seed")
    try "batches_$seed" 120 "$llmtrain" data batches "${words[@]}" --steps "$count" \
      --output "$work/losses/$seed/batches.bin" || return 0
    try "ours_$seed" 150 "$llmtrain" run "${words[@]}" || return 0
  done
  for setting in "" compile; do
    name="torch_${setting:-eager}"
    # shellcheck disable=SC2086  # words
    theirs=1 try "$name" 240 python3 "$root/scripts/bench/torch_train.py" train "$1" "$work/losses" "$count" "$batch" \
      "$name" "${seeds[@]}" $on_gpu $setting || true
  done
  row "steps" "$count of $batch samples of $tokens tokens, in bf16, from the same weights on the same batches"
  rows_of table_of spread "$work/losses" "$count" "${seeds[@]}"
}
