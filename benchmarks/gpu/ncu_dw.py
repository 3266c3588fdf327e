import sys, torch, random
import conv_depthwise as b
import kdsl_core as kd
from shapes import SHAPES_FILE
import tomllib
from dataclasses import replace
from kdsl_fuse.kernels.conv_depthwise_plan import DepthwisePlan
from kdsl_fuse.kernels.conv_depthwise_config import DepthwiseConfig
from kdsl_fuse.kernels.conv_depthwise_space import fitted
rows=tomllib.loads(SHAPES_FILE.read_text())["conv"]["depthwise"]
for i, kw in ((5, dict(rows=7,teams=4,stages=2,products=6,together=2)), (5, dict(rows=8,teams=3,stages=2,products=4,together=2)), (1, dict(rows=7,teams=3,stages=2)), (0, dict(rows=8,teams=3,stages=2))):
    case=b.Case.of(rows[i],"alone"); p=case.problem
    c=fitted(p,DepthwiseConfig(p.kernel,p.stride,p.padding,p.dilation,channels=32,**kw))
    plan=DepthwisePlan(p,c); print(plan, plan.grid)
    s=b.Set(case)
    plan.run(s.x,s.w,s.out); torch.cuda.synchronize()
