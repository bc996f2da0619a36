"""A stand-in for LaMa's weights file: the same architecture and interface, random seeded weights.

It exists so that speed, memory, loading and the whole path of engine `lama` can be measured and tested
where the published file is not at hand. What it paints is noise: never judge quality with it.

The network is the generator of Suvorov et al., "Resolution-robust Large Mask Inpainting with Fourier
Convolutions" (WACV 2022): 64 base features, three strided convolutions, 18 residual blocks of fast
Fourier convolutions of which three quarters of the channels are global, three transposed convolutions, a
sigmoid. 51.0 M parameters, 196 MiB. The file's interface is that of the published TorchScript:
`(1, 3, H, W)` float image in 0..1 and `(1, 1, H, W)` int mask, 1 = hole, to `(1, 3, H, W)` float in 0..1 with
the known pixels kept; H and W are multiples of 8.

    python benchmarks/lama_stand_in.py --out stand-in.pt
    LAMA_MODEL=stand-in.pt WATCHER_MODEL__SHA256=<the hash it printed> watcher ...
"""

from __future__ import annotations

import argparse
import hashlib
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

GLOBAL_RATIO = 0.75


class ConvolutionUnit(nn.Module):
    """Reflect-padded convolution, batch norm, ReLU."""

    def __init__(self, channels_in: int, channels_out: int, *, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.ReflectionPad2d(kernel // 2),
            nn.Conv2d(channels_in, channels_out, kernel, stride=stride, bias=False),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return `(N, channels_out, H / stride, W / stride)`."""
        out: Tensor = self.steps(features)
        return out


class FourierUnit(nn.Module):
    """A 1 x 1 convolution over the real and imaginary parts of the whole picture's spectrum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(
            nn.Conv2d(2 * channels, 2 * channels, 1, bias=False),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape, each of which has seen every pixel."""
        height, width = features.shape[-2], features.shape[-1]
        spectrum = torch.fft.rfftn(features, dim=(-2, -1), norm="ortho")
        mixed = self.mix(torch.cat((spectrum.real, spectrum.imag), dim=1))
        real, imaginary = torch.chunk(mixed, 2, dim=1)
        spectrum = torch.complex(real.contiguous(), imaginary.contiguous())
        out: Tensor = torch.fft.irfftn(spectrum, s=(height, width), dim=(-2, -1), norm="ortho")
        return out


class SpectralTransform(nn.Module):
    """Halve the channels, mix in the frequency domain, widen again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.narrow = nn.Sequential(
            nn.Conv2d(channels, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True)
        )
        self.fourier = FourierUnit(half)
        self.widen = nn.Conv2d(half, channels, 1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Return features of the same shape."""
        narrow = self.narrow(features)
        out: Tensor = self.widen(narrow + self.fourier(narrow))
        return out


class FastFourierConvolution(nn.Module):
    """One FFC layer: local and global channels, each fed by both; batch norm and ReLU on each."""

    def __init__(self, local: int, global_: int) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.local_to_local = nn.Conv2d(local, local, 3, bias=False)
        self.local_to_global = nn.Conv2d(local, global_, 3, bias=False)
        self.global_to_local = nn.Conv2d(global_, local, 3, bias=False)
        self.global_to_global = SpectralTransform(global_)
        self.norm_local = nn.BatchNorm2d(local)
        self.norm_global = nn.BatchNorm2d(global_)

    def forward(self, local: Tensor, global_: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two groups of channels, shapes unchanged."""
        padded = self.pad(local)
        to_local = self.local_to_local(padded) + self.global_to_local(self.pad(global_))
        to_global = self.local_to_global(padded) + self.global_to_global(global_)
        return torch.relu(self.norm_local(to_local)), torch.relu(self.norm_global(to_global))


class ResidualBlock(nn.Module):
    """Two FFC layers and a shortcut."""

    def __init__(self, local: int, global_: int) -> None:
        super().__init__()
        self.first = FastFourierConvolution(local, global_)
        self.second = FastFourierConvolution(local, global_)

    def forward(self, local: Tensor, global_: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two groups of channels, shapes unchanged."""
        inner_local, inner_global = self.first(local, global_)
        inner_local, inner_global = self.second(inner_local, inner_global)
        return local + inner_local, global_ + inner_global


class UpsamplingUnit(nn.Module):
    """Transposed convolution to twice the size, batch norm, ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            nn.ConvTranspose2d(channels_in, channels_out, 3, stride=2, padding=1, output_padding=1),
            nn.BatchNorm2d(channels_out),
            nn.ReLU(inplace=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return `(N, channels_out, 2 H, 2 W)`."""
        out: Tensor = self.steps(features)
        return out


class Generator(nn.Module):
    """LaMa's generator: four channels in (masked RGB and mask), RGB in 0..1 out."""

    def __init__(self, *, base: int, blocks: int) -> None:
        super().__init__()
        deep = 8 * base
        global_ = int(deep * GLOBAL_RATIO)
        local = deep - global_
        self.head = nn.Sequential(
            ConvolutionUnit(4, base, kernel=7),
            ConvolutionUnit(base, 2 * base, kernel=3, stride=2),
            ConvolutionUnit(2 * base, 4 * base, kernel=3, stride=2),
        )
        self.to_local = ConvolutionUnit(4 * base, local, kernel=3, stride=2)
        self.to_global = ConvolutionUnit(4 * base, global_, kernel=3, stride=2)
        self.blocks = nn.ModuleList([ResidualBlock(local, global_) for _ in range(blocks)])
        self.tail = nn.Sequential(
            UpsamplingUnit(deep, 4 * base),
            UpsamplingUnit(4 * base, 2 * base),
            UpsamplingUnit(2 * base, base),
            nn.ReflectionPad2d(3),
            nn.Conv2d(base, 3, 7),
        )

    def forward(self, masked: Tensor) -> Tensor:
        """Return `(N, 3, H, W)` in 0..1."""
        features = self.head(masked)
        local = self.to_local(features)
        global_ = self.to_global(features)
        for block in self.blocks:
            local, global_ = block(local, global_)
        return torch.sigmoid(self.tail(torch.cat((local, global_), dim=1)))


class Inpainter(nn.Module):
    """The file's interface: mask the picture, generate, keep what was known."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, image: Tensor, mask: Tensor) -> Tensor:
        """Fill `image` (N, 3, H, W) where `mask` (N, 1, H, W) is 1."""
        masked = torch.cat((image * (1 - mask), mask.to(image.dtype)), dim=1)
        generated = self.generator(masked)
        out: Tensor = mask * generated + (1 - mask) * image
        return out


def build(tiny: bool, seed: int) -> torch.jit.ScriptModule:  # noqa: FBT001 - the script's one switch
    """Return the scripted stand-in in evaluation mode.

    Args:
        tiny: a few kilobytes of the same shape of network, for tests.
        seed: of the weights. The same seed and version of torch give the same weights; the file's bytes, and
            so its hash, differ from run to run, since scripting orders its code by Python's hash seed.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed)
        model = Inpainter(Generator(base=4, blocks=2) if tiny else Generator(base=64, blocks=18))
        _settle_batch_norms(model)
        # torch >= 2.13 deprecates TorchScript; it is the format of the published weights
        warnings.filterwarnings(
            "ignore", message=r"`torch\.jit\.\w+` is deprecated", category=DeprecationWarning
        )
        script: torch.jit.ScriptModule = torch.jit.script(model.eval())
    return script


def _settle_batch_norms(model: nn.Module) -> None:
    """Give the batch norms the statistics of noise: with none, 18 random blocks saturate the sigmoid."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.rand(1, 3, 64, 64), torch.randint(0, 2, (1, 1, 64, 64)))


def main() -> None:
    """Write the file; print its size, parameters and sha256."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the TorchScript file to write")
    parser.add_argument("--tiny", action="store_true", help="a small network of the same shape, for tests")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    script = build(arguments.tiny, arguments.seed)
    script.save(str(arguments.out))
    parameters = sum(parameter.numel() for parameter in script.parameters())
    data = arguments.out.read_bytes()
    print(f"{arguments.out}: {len(data):,} bytes, {parameters:,} parameters")
    print(f"sha256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
