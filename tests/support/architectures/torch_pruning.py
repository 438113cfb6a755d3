"""Results of Torch-Pruning 1.6.1 for the same architectures in PyTorch 2.15, at half the channels.

The values are the numbers of parameters before and after pruning, and the largest error in float64,
relative to the largest output. The error is the difference from the network in which the removed
channels are zero. The options of BasePruner were random scores, `num_heads` for attention, and
`ignored_layers` with the layers that make the outputs.
"""

EXACT = "{} → {}"
WRONG = "{} → {}, **error {}**"

TORCH_PRUNING: dict[str, str] = {
    "AlexNet, two groups": EXACT.format("1,829", "629"),
    "VGG": EXACT.format("5,741", "1,545"),
    "ResNet": EXACT.format("9,853", "2,593"),
    "ResNet, bottlenecks": EXACT.format("3,157", "1,005"),
    "ResNet, pre-activation": EXACT.format("5,149", "1,393"),
    "ResNeXt": EXACT.format("2,581", "861"),
    "SE-ResNet": EXACT.format("10,225", "2,699"),
    "BiT-ResNet, standardized": WRONG.format("837", "277", "66 %"),
    "RepVGG": EXACT.format("1,653", "509"),
    "DenseNet": EXACT.format("3,645", "1,057"),
    "Inception": EXACT.format("2,501", "749"),
    "Xception": EXACT.format("929", "383"),
    "SqueezeNet": EXACT.format("1,085", "361"),
    "MobileNet": EXACT.format("1,029", "421"),
    "MobileNetV2": EXACT.format("3,577", "1,287"),
    "MobileNetV3": EXACT.format("4,345", "1,503"),
    "EfficientNet": EXACT.format("5,537", "1,899"),
    "ShuffleNet": WRONG.format("645", "293", "6 %"),
    "ShuffleNetV2": EXACT.format("1,333", "917"),
    "ConvNeXt": WRONG.format("2,117", "805", "34 %"),
    "ViT": EXACT.format("1,973", "1,565"),
    "MLP-Mixer": EXACT.format("1,789", "1,165"),
    "GPT": EXACT.format("1,624", "1,216"),
    "LLaMA": "TypeError",
    "Transformer, encoder and decoder": EXACT.format("1,995", "1,587"),
    "Elman": "no channel removed",
    "LSTM, fused (Linen)": "IndexError",
    "GRU (Equinox)": "no channel removed",
    "LSTM both ways and attention": EXACT.format("1,045", "973"),
    "WaveNet": "pruned network fails",
    "U-Net": EXACT.format("7,162", "1,882"),
    "Super-resolution, pixel shuffle": EXACT.format("2,471", "1,155"),
    "Variational autoencoder": EXACT.format("430", "222"),
    "DCGAN, generator": EXACT.format("5,503", "733"),
    "DCGAN, discriminator": EXACT.format("1,989", "611"),
    "Progressive GAN, discriminator, equalized": (
        "no channel removed; **error 300 %** with its layers as subclasses"
    ),
    "Diffusion block": WRONG.format("3,231", "1,005", "25 %"),
    "Radiance field": WRONG.format("1,092", "356", "37 %"),
    "convolution, batch norm": EXACT.format("861", "289"),
    "depthwise convolution": EXACT.format("357", "181"),
    "grouped convolution": EXACT.format("573", "217"),
    "transposed convolution": EXACT.format("853", "285"),
    "instance norm": EXACT.format("285", "145"),
    "group norm": WRONG.format("285", "145", "16 %"),
    "layer norm": WRONG.format("117", "61", "36 %"),
    "PReLU": EXACT.format("277", "141"),
    "scalar gate": EXACT.format("174", "74"),
    "gated linear unit": EXACT.format("245", "48"),
    "transformer layer": EXACT.format("1,005", "801"),
    "pixel shuffle": "no channel removed",
    "channel shuffle": WRONG.format("861", "289", "7 %"),
}
