// The timeline: rows of spans on a canvas; the wheel or + and - zoom, dragging or arrows move.
const c=document.getElementById('t'),x=c.getContext('2d'),tip=document.getElementById('tip');
const css=k=>getComputedStyle(document.documentElement).getPropertyValue(k);
let rows=[],at={},end=1;
for(const s of D.spans){
    const k=s[0]+':'+s[1];
    if(!(k in at))at[k]={lane:s[0],depth:s[1]};
    end=Math.max(end,s[2]+s[3])
}
for(const k of Object.keys(at).sort((a,b)=>at[a].lane-at[b].lane||at[a].depth-at[b].depth)){
    at[k].y=rows.length;
    rows.push(at[k])
}
const H=20,L=110;
let from=0,to=end;
c.style.height=(rows.length*H+24)+'px';
function draw(){
    const w=c.clientWidth,h=rows.length*H+24,r=devicePixelRatio||1;
    c.width=w*r;
    c.height=h*r;
    x.setTransform(r,0,0,r,0,0);
    x.clearRect(0,0,w,h);
    x.font='11px system-ui';
    x.textBaseline='middle';
    const px=t=>L+(t-from)/(to-from)*(w-L);
    for(const s of D.spans){
        const a=px(s[2]),b=px(s[2]+s[3]);
        if(b<L||a>w)continue;
        const y=at[s[0]+':'+s[1]].y*H+20,q=Math.max(a,L),z=Math.max(b-q,.6);
        x.fillStyle=css('--c'+s[4]%8);
        x.globalAlpha=.85;
        x.fillRect(q,y,z,H-3);
        x.globalAlpha=1;
        if(z>30){
            x.fillStyle=css('--bg');
            x.save();
            x.beginPath();
            x.rect(q,y,z-3,H);
            x.clip();
            x.fillText(D.names[s[4]],q+3,y+H/2-1);
            x.restore()
        }
    }
    x.fillStyle=css('--bg');
    x.fillRect(0,0,L-2,h);
    x.fillStyle=css('--dim');
    let last=-1;
    for(const o of rows){
        if(o.lane!=last)x.fillText(D.lanes[o.lane],2,o.y*H+20+H/2);
        last=o.lane
    }
    for(let i=0;i<=4;i++){
        const t=from+(to-from)*i/4;
        x.textAlign=i==4?'right':'left';
        x.fillText((t/1e3).toFixed((to-from)<1e4?3:1)+' ms',Math.min(px(t)+2,w),9)
    }
    x.textAlign='left'
}
function zoom(f,m){
    const a=m-(m-from)*f,b=m+(to-m)*f;
    from=Math.max(0,a);
    to=Math.min(end,Math.max(b,from+1));
    draw()
}
function move(d){
    d=Math.max(-from,Math.min(end-to,d));
    from+=d;
    to+=d;
    draw()
}
const time=e=>from+(e.offsetX-L)/(c.clientWidth-L)*(to-from);
c.onwheel=e=>{
    e.preventDefault();
    zoom(e.deltaY<0?.7:1.4,time(e))
};
let held=null;
c.onpointerdown=e=>{
    held=time(e);
    c.setPointerCapture(e.pointerId)
};
c.onpointerup=()=>held=null;
c.onpointermove=e=>{
    const t=time(e);
    if(held!==null)return move(held-t);
    const r=Math.floor((e.offsetY-20)/H);
    const s=D.spans.find(s=>at[s[0]+':'+s[1]].y==r&&s[2]<=t&&t<=s[2]+s[3]);
    tip.textContent=s?D.names[s[4]]+'   '+s[3].toFixed(3)+' us, at '+(s[2]/1e3).toFixed(3)+' ms':' '
};
c.onkeydown=e=>{
    const m=(from+to)/2,d=(to-from)/5;
    const keys={'+':()=>zoom(.7,m),'=':()=>zoom(.7,m),'-':()=>zoom(1.4,m),ArrowLeft:()=>move(-d),ArrowRight:()=>move(d)};
    keys[e.key]?.()
};
onresize=draw;
matchMedia('(prefers-color-scheme:dark)').onchange=draw;
draw();
