#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
__global__ void k(float*x,uint32_t*o,float half){
  float a=x[threadIdx.x*2],b=x[threadIdx.x*2+1];
  uint32_t h; asm("cvt.rn.f16x2.f32 %0,%1,%2;":"=r"(h):"f"(b*half),"f"(a*half));
  uint32_t t; asm("tanh.approx.f16x2 %0,%1;":"=r"(t):"r"(h)); o[threadIdx.x]=t;}
__global__ void k2(float*x,uint32_t*o,float half){
  float a=x[threadIdx.x*2],b=x[threadIdx.x*2+1];
  uint32_t h; asm("cvt.rn.bf16x2.f32 %0,%1,%2;":"=r"(h):"f"(b),"f"(a));
  __nv_bfloat162 H=*(__nv_bfloat162*)&h; H=__hmul2(H,__float2bfloat162_rn(half)); h=*(uint32_t*)&H;
  uint32_t t; asm("tanh.approx.bf16x2 %0,%1;":"=r"(t):"r"(h)); __nv_bfloat162 Tt=*(__nv_bfloat162*)&t; H=__hfma2(H,Tt,H); o[threadIdx.x]=*(uint32_t*)&H;}
